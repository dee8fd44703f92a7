"""Benchmarks: each measures the real thing and ends with a report held against targets."""

from ostinato.bench._arguments import BenchArguments as BenchArguments
from ostinato.bench._arguments import LeaksArguments as LeaksArguments
