"""`tidebus run`: the whole bus on one machine, watched from outside and checked at its end."""
