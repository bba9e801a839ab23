"""The gallery of the open questions."""

from attnflow.papers.gallery import Gallery

GALLERY = Gallery("open_questions")
