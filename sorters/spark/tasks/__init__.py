"""Tasks of a cut: the whole cut in one, or the two steps of a large one; what they answer, and where runs wait."""
