"""Other people's programs that tests and benchmarks run beside ours."""
