"""Topics of a corpus that is split before anything else: against models of others, and with less memory than all of it takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cases.limits import limit_file, limit_legs
from cases.products import RESIDENT_BYTES
from cases.sparse import quarter
from harness.model import MIB, Bound, Case, Comparison, Context, Leg, TopicFolder

TOPICS = 100
REAL_DOCUMENTS = 63_436
DRAWN_DOCUMENTS = 8_000_000
"""A quarter of their counts holds 100 centres of all words with their sums, which k-means needs at once, and what is known of
each document."""
BUDGET = 64 * MIB
LEAST_BUDGET = 24 * MIB
"""Of trials."""

OURS = "outcore TopicModel"
IN_MEMORY = "outcore TopicModel, all in memory"
SKLEARN_LDA = "scikit-learn LatentDirichletAllocation in memory"
SKLEARN_NMF = "scikit-learn NMF in memory"
ISLE = "ISLE in memory"
ISLE_PROGRAM = "$OUTCORE_ISLE/ISLETrain"
"""Built by the user; see PROTOCOL.md."""
TIMEOUT_S = 1200
"""Of a rival: the slowest needs no longer for this corpus. `topics` has one round, which takes 40 minutes at most."""
RIVALS = {
    "gensim": ("gensim LdaMulticore in memory", "topics.gensim_lda"),
    "tomotopy": ("tomotopy LDAModel in memory", "topics.tomotopy_lda"),
}

QUALITY_NOTE = (
    "NPMI is of the ten likeliest words of each topic, in the tenth of the documents that was held out; diversity is the part of "
    "the 25 likeliest words of all topics that differ."
)


def topics(context: Context) -> Case:
    return against(
        context,
        "topics",
        {SKLEARN_LDA: "topics.sklearn_lda", SKLEARN_NMF: "topics.sklearn_nmf"},
        "the faster of scikit-learn's LDA and NMF",
        rounds=1,
    )


def with_rival(context: Context, package: str) -> Case:
    """Apart, for it is installed by few."""
    name, function = RIVALS[package]
    return against(context, f"topics-{package}", {name: function}, package, needs=(package,))


def with_isle(context: Context) -> Case:
    options = {"program": ISLE_PROGRAM, "scratch": context.path("scratch")}
    return against(context, "topics-isle", {ISLE: "topics.isle"}, "ISLE", needs=(ISLE_PROGRAM,), options=options)


def against(
    context: Context,
    name: str,
    rivals: dict[str, str],
    words: str,
    needs: tuple[str, ...] = (),
    options: dict[str, Any] | None = None,
    rounds: int = 3,
) -> Case:
    documents = min(REAL_DOCUMENTS, max(3000, context.count(REAL_DOCUMENTS)))
    a = TopicFolder(context.path(f"topics-{documents}-seed7"), documents, seed=7)
    common: dict[str, Any] = {"a": a.path, "k": max(5, context.count(TOPICS))}
    return Case(
        name,
        f"{common['k']} topics of {a.learned_documents:,} package descriptions, budget {BUDGET >> 20} MiB",
        "s",
        [
            Leg(OURS, "topics.ours", {**common, "memory": BUDGET, "scratch": context.path("scratch")}, cold=a.parts),
            *(Leg(rival, function, {**common, **(options or {})}, timeout_s=TIMEOUT_S) for rival, function in rivals.items()),
        ],
        [
            Comparison(OURS, tuple(rivals), f"{words}, counts in memory, loading not timed", 1.0),
            *(Comparison(OURS, (rival,), f"{rival}, loading not timed") for rival in rivals if len(rivals) > 1),
        ],
        Bound(note="every count read once"),
        [a],
        needs=needs,
        rounds=rounds,
        notes=(QUALITY_NOTE,),
    )


def memory(context: Context) -> Case:
    documents = max(20_000, context.count(DRAWN_DOCUMENTS))
    a = TopicFolder(context.path(f"topics-drawn-{documents}-seed8"), documents, drawn=True, seed=8)
    budget = max(LEAST_BUDGET, quarter(a.learned_bytes))
    common: dict[str, Any] = {"a": a.path, "k": max(5, context.count(TOPICS)), "scratch": context.path("scratch")}
    return Case(
        "topics-memory",
        f"{common['k']} topics of {a.learned_documents:,} documents drawn from package descriptions, budget {budget >> 20} MiB, "
        "a quarter of their counts, process limited to 64 MiB more",
        "s",
        [
            Leg(OURS, "topics.ours", {**common, "memory": budget}, cold=a.parts, limited=True),
            Leg(IN_MEMORY, "topics.ours", {**common, "memory": RESIDENT_BYTES, "in_memory": True}),
            *limit_legs(context, "read"),
        ],
        [Comparison(OURS, (IN_MEMORY,), "our own run with counts and budget in memory, loading not timed", 0.95)],
        Bound(read_bytes=float(a.learned_bytes), note="every count read once"),
        [a, limit_file(context)],
        limit_over_bytes=budget,
        rounds=3,
        notes=(QUALITY_NOTE,),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {
    "topics": topics,
    **{f"topics-{package}": partial(with_rival, package=package) for package in RIVALS},
    "topics-isle": with_isle,
    "topics-memory": memory,
}
