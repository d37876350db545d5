"""The figure of `record.plot`, which a notebook shows without any setup of matplotlib.

Text and axes are gray on a transparent background, readable in light and in dark themes.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#808080"
"""A gray with the same contrast on white and on a dark page."""


class RecordFigure(Figure):
    """A figure that a notebook shows as PNG, even if no backend of matplotlib was chosen."""

    def _repr_png_(self) -> bytes:
        """Return the picture. IPython shows figures by itself only after `%matplotlib inline`."""
        png = BytesIO()
        self.savefig(png, format="png")
        return png.getvalue()


def tint(axes: Axes) -> None:
    """Draw axes in gray on a transparent background."""
    axes.patch.set_visible(False)
    axes.tick_params(colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.spines[:].set_color(INK)
    axes.spines[["top", "right"]].set_visible(False)
