"""LoRA: from an adapter's files to low-rank factors of a graph's parameters, by the rules of the base model."""
