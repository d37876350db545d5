"""Convert in other threads: one tree with a handle, or batches ahead of their use."""

from xbridge._transfer.api import Transfer, prefetch, transfer

__all__ = ["Transfer", "prefetch", "transfer"]
