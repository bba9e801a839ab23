"""The papers: their statements as claims, their figures as commands."""
