"""Found first by the processes that Spark starts: users have no Hypothesis, which kio would import in each of them."""

raise ImportError("as where the tests' libraries are not installed")
