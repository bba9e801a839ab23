"""The gallery of the paper's figures."""

from attnflow.papers.gallery import Gallery

GALLERY = Gallery("conditioning")
