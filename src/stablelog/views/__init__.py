"""Views: a view presents the log of a partition in another order than the order of the writes. There is one view:
commit order.
"""
