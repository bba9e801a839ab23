"""How cross-entropy routes the scores and moves the values of one attention head.

The source is a summary page: settings that it leaves open are stated where they are chosen.
"""
