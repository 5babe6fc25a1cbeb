"""The test tools of stablelog, such as a broker with faults and a simulated disk. Programs that use stablelog can use
them in their own tests.
"""
