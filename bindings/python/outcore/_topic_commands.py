"""The command for topics: `outcore topics`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from ._commands import SEED, lines_of, say_plan, session_of, session_options
from .errors import ArgumentError

PATH = click.Path(dir_okay=False)


@click.command()
@click.argument("corpus", type=click.Path())
@click.option("-k", "--topics", "count", type=click.IntRange(1), default=10, show_default=True, help="How many.")
@click.option("--vocabulary", type=PATH, help="Text file with the word of each column, one a line; default that of CORPUS.")
@click.option("--output", "-o", type=PATH, help="New .npy file for the probability of each word in each topic.")
@click.option("--weights", type=PATH, help="New .npy file for the weights of topics in each document.")
@click.option("--words", "shown", type=click.IntRange(1), default=10, show_default=True, help="Words to print of each topic.")
@click.option("--edge-topics", type=click.IntRange(0), default=0, show_default=True, help="Pairs of topics to look for, at most.")
@click.option("--sample-rate", type=click.FloatRange(0, 1, min_open=True), help="Cluster this part of the documents.")
@click.option("--compat", is_flag=True, help="Do what the code of ISLE does, not its paper.")
@click.option("--checkpoint", type=PATH, help="File to go on from after a crash.")
@click.option("--random-state", type=SEED, default=0, show_default=True)
@click.option("--explain", is_flag=True, help="Print the plan; nothing is read or written.")
@session_options
def topics(
    corpus: str,
    count: int,
    vocabulary: str | None,
    output: str | None,
    weights: str | None,
    shown: int,
    edge_topics: int,
    sample_rate: float | None,
    compat: bool,
    checkpoint: str | None,
    random_state: int,
    explain: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Topics of CORPUS, a folder with a matrix of documents and words, and the words that make them."""
    from . import from_numpy
    from ._spectra import forget_checkpoint
    from .topics import TopicModel

    session = session_of(options)
    x = session.open(corpus)
    known = lines_of(vocabulary)
    if known is not None and len(known) != x.shape[1]:
        raise ArgumentError(f"{vocabulary} has {len(known)} words, but {corpus} has {x.shape[1]} columns")
    model = TopicModel(
        count, random_state, sample_rate=sample_rate, n_edge_topics=edge_topics, compat=compat, checkpoint=checkpoint
    )
    if explain:
        say_plan(model.explain(x), as_json)
        return
    # Before a search of hours: results have a place.
    for path in filter(None, (output, weights)):
        if not Path(path).absolute().parent.is_dir():
            raise ArgumentError(f"{path} cannot be written: there is no such folder")
    began = time.perf_counter()
    model._learn(x)
    seconds = time.perf_counter() - began
    if output is not None:
        from_numpy(output, model.components_)
    if weights is not None:
        model.transform(x, out=weights)
    forget_checkpoint(checkpoint)
    coherence = model.coherence(x)
    found: list[dict[str, Any]] = [
        {
            "documents": int(size),
            "npmi": None if npmi != npmi else float(npmi),
            "catchwords": len(catchwords),
            "words": [str(word) for word in words],
        }
        for size, npmi, catchwords, words in zip(
            model.topic_sizes_, coherence, model.catchwords_, model.top_words(shown, known), strict=True
        )
    ]
    edges = [[*map(int, pair), int(documents)] for pair, documents in zip(model.edge_topics_, model.edge_counts_, strict=True)]
    if as_json:
        told = {"topics": found, "edge_topics": edges, "diversity": model.diversity(), "fit_s": seconds}
        print(json.dumps({**told, "output": output, "weights": weights}))
        return
    print(f"{count} topics of {x.shape[0]} documents, found in {seconds:.2f} s; diversity {model.diversity():.2f}")
    print(f"{'topic':>5} {'documents':>9} {'NPMI':>6}  words")
    for number, topic in enumerate(found):
        npmi = "-" if topic["npmi"] is None else f"{topic['npmi']:.2f}"
        print(f"{number:>5} {topic['documents']:>9} {npmi:>6}  {' '.join(topic['words'])}")
    for first, second, documents in edges:
        print(f"topics {first} and {second} together: {documents} documents")


COMMANDS = (topics,)
