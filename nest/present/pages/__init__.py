"""Pages: one file of HTML from a document, for people who open it.

What is known is gathered in a document, plain data (:mod:`.document`); what the page
says, in which order, follows from the document alone (:mod:`.parts`, :mod:`.charts`),
and so does its text (:mod:`.html`). The same document gives the same page.
"""
