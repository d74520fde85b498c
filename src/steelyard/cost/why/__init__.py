"""Why a forecast is what it is: its formulas with the numbers put in, to be redone by hand."""
