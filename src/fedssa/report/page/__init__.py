"""The whole report is one page that needs nothing but itself, and the files beside it."""
