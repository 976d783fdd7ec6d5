"""The sharded_state format of vLLM and SGLang: one table of names, for writing and reading the files of ranks."""
