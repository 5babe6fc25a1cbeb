"""Options for a Java process that no test lets run for long enough to be worth the better compiler.

With them, a Spark driver of the tests takes two thirds of the processor time.
"""

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
