"""The plots: transactions per second against the update size, a line per refresh mode, and against the number of LTMs.

The one module that needs matplotlib (the extra `bench`), and only when a plot is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import BenchError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Of a line of the plot: update size -> transactions per second.
Line = Mapping[int, float]
#: Of a panel: the name of the line -> the line, in the order of the legend.
Panel = Mapping[str, Line]

INCHES = (10.0, 4.2)
DOTS_PER_INCH = 150
MARKERS = "osD^vPX*"


def empty_figure() -> Figure:
    """Called before anything is measured too: that matplotlib is missing is better known before than after."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BenchError(f"matplotlib cannot be imported ({error}): pip install 'viewtide[bench]'") from error
    return Figure(figsize=INCHES, layout="constrained")


def write_plot(path: Path, title: str, panels: Mapping[str, Panel]) -> None:
    """One panel beside the other, all with the same scale."""
    figure = empty_figure()
    figure.suptitle(title)
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (name, panel) in zip(row, panels.items(), strict=True):
        _draw(axes, name, panel)
    row[0].set_ylabel("transactions/s")
    row[-1].legend(title="refresh")
    figure.savefig(path, dpi=DOTS_PER_INCH)


def write_lines(path: Path, title: str, panels: Mapping[str, Panel], x_label: str, y_label: str) -> None:
    """One panel beside the other, each with scales of its own: straight growth is a straight line."""
    figure = empty_figure()
    figure.suptitle(title)
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, panel) in zip(row, panels.items(), strict=True):
        for marker, (label, line) in zip(MARKERS, panel.items(), strict=False):
            places = sorted(line)
            axes.plot(places, [line[place] for place in places], marker=marker, label=label)
        axes.set_title(name)
        axes.set_xlabel(x_label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    row[0].set_ylabel(y_label)
    figure.savefig(path, dpi=DOTS_PER_INCH)


def _draw(axes: Axes, name: str, panel: Panel) -> None:
    for marker, (label, line) in zip(MARKERS, panel.items(), strict=False):
        sizes = sorted(line)
        axes.plot(sizes, [line[size] for size in sizes], marker=marker, label=label)
    sizes = sorted({size for line in panel.values() for size in line})
    axes.set_title(name)
    axes.set_xlabel("rows per transaction")
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
