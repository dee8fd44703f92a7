"""Traces, their profiles, and the engine's scheduler run on them under a virtual clock."""
