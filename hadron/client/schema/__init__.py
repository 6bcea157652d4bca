"""The schema as a client sees it, and changes it.

* `catalog`: looks objects up, follows streams that were looked up, applies and deletes.
* `declarations`: makes objects of what people write, for the catalog to apply.
"""
