"""The state and the operations of translated PTX: values of lanes, memories, warps, matrix products, copies."""
