"""Full-size published checkpoints, of which only the headers are real."""
