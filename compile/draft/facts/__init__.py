"""What a checkpoint shows of its architecture: sizes, the role and the reading of each tensor, hints, questions."""
