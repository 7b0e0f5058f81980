import gc

from mjfleet.utils.garbage_collection import lasting_imports, no_garbage_collection


def test_what_libraries_make_is_never_looked_at_again() -> None:
    before = gc.get_freeze_count()
    try:
        with lasting_imports():
            assert not gc.isenabled()
            made = [[] for _ in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(made)
    finally:
        gc.unfreeze()


def test_collections_stay_off_where_they_were_off() -> None:
    gc.disable()
    try:
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
