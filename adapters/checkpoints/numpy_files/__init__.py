"""Files that numpy writes, read without numpy: `.npy`, and the archives of them, `.npz`."""
