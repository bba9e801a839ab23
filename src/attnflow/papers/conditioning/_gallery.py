"""The gallery of the paper's figures, and the line under those that are trainings."""

from matplotlib.figure import Figure

from attnflow.papers.gallery import Gallery

GALLERY = Gallery("conditioning")


def told(figure: Figure, setting: str) -> None:
    """A grey line below a picture: what was trained, and what the paper does otherwise."""
    figure.supxlabel(setting, fontsize=7, color="0.5")
