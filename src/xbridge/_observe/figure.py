"""The picture of a record, which shows itself in a notebook without any setup of matplotlib.

Words and axes are gray on no background, so that the picture can be read in light and in dark themes.
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
    """A figure that a notebook shows as PNG, also if no backend of matplotlib has been chosen."""

    def _repr_png_(self) -> bytes:
        """Return the picture. IPython shows figures by itself only after `%matplotlib inline`."""
        png = BytesIO()
        self.savefig(png, format="png")
        return png.getvalue()


def tint(axes: Axes) -> None:
    """Draw axes in gray, on no background."""
    axes.patch.set_visible(False)
    axes.tick_params(colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.spines[:].set_color(INK)
    axes.spines[["top", "right"]].set_visible(False)
