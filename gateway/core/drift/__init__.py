"""Whether the table still describes the cluster, and what to do until it does again.

    detect    batches of observed ÷ predicted, and an alarm with a stated rate of false ones
    regions   corrections: cell → neighbourhood → arm, shrunk, decaying, bounded
    explore   a small budget of turns that take the other route, so that both stay measured
    monitor   the three together: what a policy asks and tells
    tally     what was measured per cell, for a new table

Rule of this room: the table is believed until evidence speaks against it; then measurements count, as long as they
are fresh. Time is an argument.
"""
