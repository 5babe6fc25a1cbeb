"""Options for a Java process that no test lets run for long enough to be worth the better compiler.

With them, a Spark driver of the tests takes two thirds of the processor time. The classes of Spark and Kafka are not
verified at each start, either: that takes a fifth of a start.
"""

QUICK_JAVA = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
