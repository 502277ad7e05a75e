"""The text whose perplexity is measured, written for it and licensed as this project is."""

TEXT = """\
The ferry leaves the harbour at a quarter past seven, when the market on the quay is still being set up. \
On most mornings about forty people cross to the island: teachers, two nurses, the man who repairs clocks, \
and children who do their homework on the upper deck because the tables there are wide and dry. The captain \
knows nearly all of them by name. If somebody is missing, she asks the others whether he is ill.

The crossing takes thirty-five minutes in calm weather. In the first ten the boat passes the old lighthouse, \
which has not been lit since a new one was built further out, and the rocks on which seals lie in summer. \
Then there is only water for a while. Some passengers read, some sleep, and a few stand outside in every \
season and look at the line where the sky begins.

When the engine was replaced three years ago, the company measured how much fuel each trip needed. The new \
engine used a fifth less than the old one at the same speed. With the money that was saved, the company \
bought a second boat, smaller than the first, which now makes the trip at night. It carries letters, bread \
and, once a month, the books that the library on the island has ordered from the town.
"""
