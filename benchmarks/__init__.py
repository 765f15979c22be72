"""The benchmark suite: see docs/performance.md."""
