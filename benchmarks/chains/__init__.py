"""Chains of operators as networks have them: fused by the search, operator by operator, and by PyTorch."""
