"""The compile cache: a store of results under the digest of their inputs."""
