"""Text for people: findings, plans, stage lines."""
