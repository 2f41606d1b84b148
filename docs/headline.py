"""The headline ratios: the table at the top of the README and its picture, from the raw results under bench/results.

python docs/headline.py              writes docs/headline.svg, and the table between the markers of README.md
python docs/headline.py --print      prints the table only
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "headline.svg"
TABLE = re.compile(r"(<!-- headline: [^\n]*-->\n)(.*?)(<!-- /headline -->)", re.DOTALL)


@dataclass(frozen=True)
class Headline:
    """A row of the table: the legs `ours` and `rival` of a case, and what to call the work and the rival."""

    case: str
    ours: str
    rival: str
    work: str
    against: str


HEADLINES = [
    Headline(
        "pca",
        "outcore PCA",
        "dask-ml IncrementalPCA",
        "PCA of 20 GiB in a budget of 512 MiB",
        "dask-ml `IncrementalPCA`, memory not limited",
    ),
    Headline(
        "libsvm",
        "outcore",
        "scikit-learn load_svmlight_file",
        "Import of 1.9 GiB of LIBSVM text in 488 MiB",
        "scikit-learn `load_svmlight_file`, into memory",
    ),
    Headline(
        "samples-hot",
        "outcore, kept in memory",
        "PyTorch DataLoader over a memory map",
        "Shuffled batches of samples of 4 KiB, cached in memory",
        "PyTorch `DataLoader` over a memory map",
    ),
    Headline(
        "streams-records",
        "outcore",
        "Arrow IPC, batches of 10,000",
        "Write and read 10 million records of 100 bytes",
        "Arrow IPC",
    ),
    Headline(
        "iterative-logistic",
        "outcore streams",
        "memory and disk, two levels",
        "Logistic regression: 10 passes over 2 GiB in 512 MiB",
        "an LRU cache in memory and on disk, no prefetching",
    ),
    Headline(
        "samples-epoch",
        "outcore.torch.Loader, global shuffle",
        "DALI",
        "First shuffled epoch of 400,000 samples of 3 KiB, cold",
        "NVIDIA DALI, the fastest of seven rivals",
    ),
    Headline(
        "kmeans-clouds",
        "outcore KMeans",
        "scikit-learn KMeans in memory",
        "k-means of 1.9 GiB in 256 MiB",
        "scikit-learn, all rows in memory",
    ),
    Headline(
        "gemm-512MiB",
        "outcore with MKL",
        "numpy in memory",
        "Matrix product with MKL, 3 GiB of matrices in 512 MiB",
        "NumPy with MKL, all in memory",
    ),
    Headline(
        "samples-16384B",
        "outcore, global shuffle",
        "fio io_uring randread, into huge pages",
        "Random samples of 16 KiB from SSD, one core",
        "fio at its best depth: the device's limit",
    ),
    Headline(
        "csrmm-256",
        "outcore",
        "MKL in memory, optimized for the product",
        "Sparse times dense, 204 million entries, 256 columns, in 396 MiB",
        "MKL, all in memory",
    ),
]


@dataclass(frozen=True)
class Result:
    """What was measured for a row: the ratio of speeds, ours over the rival's, paired by round."""

    headline: Headline
    ratio: float
    lowest: float
    highest: float
    rounds: int

    def numbers(self) -> str:
        spread = "one round" if self.rounds == 1 else f"{self.lowest:.2f} to {self.highest:.2f}"
        return f"**{self.ratio:.2f}** ({spread})"


def rates(case: str, leg: str) -> list[float]:
    """Work a second of each round of a leg, from the newest folder that has the case.

    The only place that knows how raw results are stored.
    """
    path = max(RESULTS.glob(f"*/{case}.json"), key=lambda path: path.parent.name)
    found = next(one for one in json.loads(path.read_text())["legs"] if one["name"] == leg)
    results = [outcome["result"] for outcome in found["rounds"] if outcome["status"] == "ok"]
    return [result.get("work", found["work"]) / statistics.median(result["seconds"]) for result in results]


def measure(headline: Headline) -> Result:
    ours, rival = rates(headline.case, headline.ours), rates(headline.case, headline.rival)
    ratios = [own / other for own, other in zip(ours, rival, strict=True)]
    return Result(headline, statistics.median(ratios), min(ratios), max(ratios), len(ratios))


def table(results: list[Result]) -> str:
    rows = [f"| {one.headline.work} | {one.headline.against} | {one.numbers()} |" for one in results]
    return "\n".join(["| work | compared with | times as fast |", "|---|---|---|", *rows]) + "\n"


def write_table(results: list[Result]) -> None:
    text = README.read_text()
    README.write_text(TABLE.sub(lambda found: found[1] + table(results) + found[3], text))


def draw(results: list[Result], path: Path) -> None:
    """Bars on a logarithmic axis that begin at 1, with the range of the rounds."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "outcore", "font.family": "sans-serif", "font.size": 9})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.4, 0.36 * len(results) + 0.9))
    figure.subplots_adjust(left=0.56, right=0.95, top=0.98, bottom=0.12)
    for place, one in enumerate(results):
        color = "#2f6f9f" if one.ratio >= 1 else "#b5652b"
        axes.barh(place, one.ratio - 1, left=1, height=0.6, color=color)
        axes.plot([one.lowest, one.highest], [place, place], color="black", linewidth=1)
        axes.text(max(one.highest, 1) * 1.08, place, f"{one.ratio:.2f}", va="center")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(0.5, max(one.highest for one in results) * 1.9)
    axes.set_xticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
    axes.minorticks_off()
    axes.set_yticks(range(len(results)), [label(one.headline) for one in results])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast (1: equally fast)")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def label(headline: Headline) -> str:
    plain = headline.against.replace("`", "")
    return f"{headline.work}\nagainst {plain}"


def main() -> None:
    results = sorted((measure(headline) for headline in HEADLINES), key=lambda one: -one.ratio)
    if "--print" in sys.argv[1:]:
        print(table(results), end="")
        return
    write_table(results)
    draw(results, PICTURE)


if __name__ == "__main__":
    main()
