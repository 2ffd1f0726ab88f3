"""`python -m bench`: print the table; with `--write`, put it into docs/ too.

Every figure is a median over several runs, and what counts is its ratio to plain
ipykernel's in the same run: absolute times are this machine's own business.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from ipykernel.kernelspec import install as install_ipykernel

from bench.kernels import Kernel, started

PLAIN = "plain-ipykernel"
PAGE = Path(__file__).parent.parent / "docs" / "reference" / "benchmarks.md"

#: Cells that make what the measured cells show.
SETUP = """
import os, struct, zlib
from IPython.display import Image, display

def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

side = 1290
rows = b"".join(b"\\0" + os.urandom(side * 3) for _ in range(side))
png = (b"\\x89PNG\\r\\n\\x1a\\n"
       + _chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
       + _chunk(b"IDAT", zlib.compress(rows, 0)) + _chunk(b"IEND", b""))
"""


class Work(NamedTuple):
    """One row: what is done, how often, and the ratio to reach."""

    name: str
    code: str
    times: int
    limit: float


WORKS = (
    Work("round trip of a trivial cell", "1", 200, 1.3),
    Work("100 000 printed lines", "for i in range(100_000):\n    print(i)", 3, 1.5),
    Work("a 5 MB PNG", "display(Image(data=png))", 5, 1.5),
)
START = Work("kernel start to first reply", "", 5, 1.5)


def measure(names: list[str], *, smoke: bool) -> dict[tuple[str, str], list[float]]:
    """Seconds by (work, kernel); the kernels take turns, so that a slow minute hits all."""
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for turn in range(2 if smoke else START.times):
        for name in names:
            with started(name) as kernel:
                seconds[START.name, name].append(kernel.first_reply_seconds)
                if turn == 0:
                    _measure_works(kernel, name, seconds, smoke=smoke)
    return seconds


def _measure_works(
    kernel: Kernel, name: str, seconds: dict[tuple[str, str], list[float]], *, smoke: bool
) -> None:
    kernel.run(SETUP)
    for work in WORKS:
        kernel.run(work.code)
        for _ in range(min(work.times, 3) if smoke else work.times):
            seconds[work.name, name].append(kernel.run(work.code))


def table(seconds: dict[tuple[str, str], list[float]], names: list[str]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| work | kernel | median | p95 | ratio to ipykernel | to reach |",
        "|---|---|---|---|---|---|",
    ]
    for work in (START, *WORKS):
        reference = statistics.median(seconds[work.name, PLAIN])
        for name in names:
            values = seconds[work.name, name]
            median = statistics.median(values)
            ratio = "1" if name == PLAIN else f"**{median / reference:.2f}**"
            goal = "" if name == PLAIN else f"<= {work.limit:g}"
            lines.append(
                f"| {work.name} | {name} | {_ms(median)} | {_ms(_p95(values))} | {ratio} | {goal} |"
            )
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _p95(values: list[float]) -> float:
    return sorted(values)[max(0, round(len(values) * 0.95) - 1)]


def page(text: str) -> str:
    """The page of the documentation that holds the table."""
    return f"""# Benchmarks

Made by `make bench` on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, {platform.machine()},
Python {platform.python_version()}, ipykernel {version("ipykernel")}. Only the ratios mean
something elsewhere; each is against plain ipykernel in the same run.

{text}
"""


def main() -> None:
    """Measure the kernels that are named, by default the docker one."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("kernels", nargs="*", default=["aisandbox-docker"])
    parser.add_argument("--smoke", action="store_true", help="only check that it works")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} into docs/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as prefix:
        install_ipykernel(kernel_name=PLAIN, display_name=PLAIN, prefix=prefix)
        os.environ["JUPYTER_PATH"] = str(Path(prefix) / "share" / "jupyter")
        names = [PLAIN, *options.kernels]
        text = table(measure(names, smoke=options.smoke), names)
    print(text)
    if options.write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(text))


if __name__ == "__main__":
    main()
