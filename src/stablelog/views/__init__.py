"""Views: a view presents the log of a partition in another order than that of the writes. There is one view: commit
order.
"""
