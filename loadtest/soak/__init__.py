"""Hours of traffic and trouble in minutes, and a ledger of what came of it.

Rule of this room: pods and gateway are processes of their own; an error counts as explained only while a fault was
under way and only in a form that a client understands.
"""
