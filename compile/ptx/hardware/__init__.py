"""The state and the operations that translated PTX works on: values of lanes, memories, warps, matrices, copies."""
