"""The verification of a division among ranks: all ranks run in this process, and their logits are those of one."""
