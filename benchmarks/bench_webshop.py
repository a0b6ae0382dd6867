"""WebShop: what an action, a start and a worker cost, and how search engines compare.

``python benchmarks/bench_webshop.py [steps|workers|engines ...] [--data-dir DIR] [--rankings FILE] [--seconds S]``

Without ``--data-dir`` the shipped catalogue is used; the reference figures are RAGEN's on WebShop's 1,000 products (CPU
milliseconds on a two-core machine; compare orders of magnitude, not digits). ``engines`` needs the packages bm25s and
tantivy, and ``--rankings`` a file of JSON lines (plain or gzip) with ``q`` and ``hits``, the asins that the reference's
Lucene index finds for it, best first.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import multiprocessing
import pickle
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from ragen.env.webshop.analyzer import analyze
from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv
from ragen.env.webshop.records import index_text
from ragen.env.webshop.solver import next_action

REFERENCE_MS = {"reset": 4.8, "search": 76, "item": 49, "other page": 26, "option": 49, "buy": 24}
TOP = 50
MEGABYTES = {
    "letters": "a" * 10**6,
    "search, words": "search[" + "lamp red " * 10**5 + "]",
    "search, emoji": "search[" + "😀" * 10**6 + "]",
    "brackets": "[]" * 10**6,
}


def microseconds(call: Callable[[], Any], seconds: float) -> float:
    """The mean time of a call, repeated for about so many seconds."""
    call()
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        call()
        calls += 1
    return (time.perf_counter() - start) / calls * 1e6


def milliseconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """The time of one call, and what it gave."""
    start = time.perf_counter()
    result = call()
    return (time.perf_counter() - start) * 1e3, result


def bench_steps(options: argparse.Namespace) -> None:
    """Print what a start and an action cost; an action includes the rendering that follows it."""
    with tempfile.TemporaryDirectory() as folder:
        for start in ("first start, index built", "next start"):
            env = WebShopEnv(WebShopEnvConfig(data_dir=options.data_dir, cache_dir=folder))
            took, _ = milliseconds(lambda env=env: env.reset(1))
            print(f"{start:26} {took:9.1f} ms")
            del env
        env = WebShopEnv(WebShopEnvConfig(data_dir=options.data_dir, cache_dir=folder))
        env.reset(1)
        print(f"{env.catalogue.product_count} products, {env.catalogue.goal_count} goals\n")
        print(f"{'':26} {'µs':>9}   reference, µs")
        for name, took in action_times(env, options.seconds):
            known = f"{REFERENCE_MS[name] * 1000:12.0f}" if name in REFERENCE_MS else ""
            print(f"{name:26} {took:9.1f} {known}")


def action_times(env: WebShopEnv, seconds: float) -> Iterator[tuple[str, float]]:
    """The name and the mean microseconds of each kind of call."""
    twin, seeds = WebShopEnv(env.config), count()
    words = random.Random(0).choices(["lamp", "red", "machine washable", "men's", "shirt", "for", "easy"], k=1000)
    queries = (f"search[{a} {b} {c}]" for a, b, c in zip(words * 99, words[7:] * 99, words[31:] * 99, strict=False))

    def act(*actions: str) -> None:
        for action in actions:
            env.step(action)
            env.render()

    yield "reset", microseconds(lambda: env.reset(next(seeds)), seconds)
    yield "snapshot, saved and loaded", microseconds(lambda: twin.load(env.save()), seconds)
    yield "search", microseconds(lambda: act(next(queries)), seconds)
    found = microseconds(lambda: act("search[men shirt]"), seconds)
    products = [action for action in env.get_available_actions() if action[6:7] in "br" and "back" not in action]
    chosen = iter(random.Random(0).choices(products, k=10**6))
    item = microseconds(lambda: act("search[men shirt]", next(chosen)), seconds) - found
    yield "item", item
    act(products[0])
    value = env.get_available_actions()[-1]
    yield "option", microseconds(lambda: act(value), seconds)
    yield "other page", microseconds(lambda: act("click[description]", "click[< prev]"), seconds) / 2
    yield "buy", microseconds(lambda: act("search[men shirt]", next(chosen), "click[buy now]"), seconds) - found - item
    env.reset(1)
    yield "text that is no action", microseconds(lambda: act("hello"), seconds)
    yield "pickle and back", microseconds(lambda: pickle.loads(pickle.dumps(env)), seconds)
    for name, action in MEGABYTES.items():
        yield f"1 MB: {name}", microseconds(lambda action=action: act(action), seconds)


def bench_workers(options: argparse.Namespace, workers: int = 4) -> None:
    """Print what each of four worker processes takes: time to the first state, and memory after shopping."""
    with tempfile.TemporaryDirectory() as folder:
        WebShopEnv(WebShopEnvConfig(data_dir=options.data_dir, cache_dir=folder)).reset(1)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.store")) / 2**20
        print(f"\n{workers} workers, built file {size:.1f} MB, shared by all")
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(workers)
        with context.Pool(workers, _remember, (barrier,)) as pool:
            rows = pool.map(_worker, [(options.data_dir, folder, number) for number in range(workers)], chunksize=1)
    print(f"{'':10} {'open, ms':>9} {'own memory, MB':>15} {'proportional, MB':>17} {'mean reward':>12}")
    for number, row in enumerate(rows):
        print(f"worker {number:<3} {row[0]:9.1f} {row[1]:15.1f} {row[2]:17.1f} {row[3]:12.2f}")
    print("(memory that the shop added to the process; proportional counts shared pages by their share)")


_barrier: Any = None


def _remember(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _worker(arguments: tuple[str | None, str, int]) -> tuple[float, float, float, float]:
    data_dir, cache_dir, number = arguments
    _barrier.wait()
    before = _memory()
    env = WebShopEnv(WebShopEnvConfig(data_dir=data_dir, cache_dir=cache_dir))
    opened, _ = milliseconds(lambda: env.reset(number))
    rewards = [_shop(env, seed) for seed in range(number * 50, number * 50 + 50)]
    _barrier.wait()
    own, proportional = (after - start for after, start in zip(_memory(), before, strict=True))
    _barrier.wait()
    return opened, own, proportional, sum(rewards) / len(rewards)


def _memory() -> tuple[float, float]:
    """Private and proportional memory of this process, in MB."""
    found = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    numbers = {key: int(value.split()[0]) / 1024 for key, value in found.items()}
    return numbers["Private_Clean"] + numbers["Private_Dirty"], numbers["Pss"]


def _shop(env: WebShopEnv, seed: int) -> float:
    state, clicked, page = env.reset(seed), set[str](), ""
    for _ in range(9):
        if env.observation != page:
            page, clicked = env.observation, set()
        action = next_action(state, clicked)
        clicked.add(action)
        _, reward, done, _ = env.step(action)
        if done:
            return reward
        state = env.render()
    return 0.0


def bench_engines(options: argparse.Namespace) -> None:
    """Print what each engine takes to import, load and search, and how often it ranks as the reference does."""
    catalogue = WebShopEnv(WebShopEnvConfig(data_dir=options.data_dir)).catalogue
    products = sorted(map(catalogue.product, range(catalogue.product_count)), key=lambda product: product.asin)
    asins = [product.asin for product in products]
    terms = [analyze(index_text(product)) for product in products]
    queries, rankings = _rankings(options.rankings, [product.title for product in products])
    print(f"\n{'':10} {'import, ms':>10} {'+MB':>6} {'build, ms':>10} {'load, ms':>9} {'query, µs':>10} {'equal':>10}")
    for name, engine in (("bm25s", _bm25s), ("tantivy", _tantivy), ("ours", _ours)):
        with tempfile.TemporaryDirectory() as folder, context_imported(name) as (imported, memory):
            build, load = engine(terms, asins, folder, options)
            built, _ = milliseconds(build)
            loaded, search = milliseconds(load)
            took = microseconds(lambda queries=queries, search=search: [search(query) for query in queries], 1)
            equal = sum(search(query) == ranking for query, ranking in zip(queries, rankings, strict=False))
        figures = f"{imported:10.0f} {memory:6.1f} {built:10.1f} {loaded:9.2f} {took / len(queries):10.1f}"
        print(f"{name:10} {figures} {f'{equal}/{len(rankings)}':>10}")


@contextmanager
def context_imported(name: str) -> Iterator[tuple[float, float]]:
    """Import a package and tell what that took, in ms and MB of private memory."""
    before = _memory()[0]
    took, _ = milliseconds(lambda: name == "ours" or importlib.import_module(name))
    yield took, _memory()[0] - before


def _rankings(path: str | None, titles: list[str]) -> tuple[list[str], list[list[str]]]:
    if path is None:
        return titles[:300], []
    with gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8") as lines:
        rows = [row for row in map(json.loads, lines) if "hits" in row]
    return [row["q"] for row in rows], [[asin for asin, _ in row["hits"]] for row in rows]


def _bm25s(terms: list[list[str]], asins: list[str], folder: str, _: Any) -> tuple[Callable, Callable]:
    import bm25s

    def build() -> None:
        engine = bm25s.BM25(k1=0.9, b=0.4, method="lucene", backend="numpy")
        engine.index(terms, show_progress=False)
        engine.save(folder)

    def load() -> Callable[[str], list[str]]:
        engine = bm25s.BM25.load(folder, mmap=True)

        def search(query: str) -> list[str]:
            found = [analyze(query)]
            if not found[0]:
                return []
            places, scores = engine.retrieve(found, k=min(TOP, len(asins)), show_progress=False)
            return [asins[place] for place, score in zip(places[0], scores[0], strict=True) if score > 0]

        return search

    return build, load


def _tantivy(terms: list[list[str]], asins: list[str], folder: str, _: Any) -> tuple[Callable, Callable]:
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", stored=False, tokenizer_name="whitespace")
    builder.add_integer_field("place", stored=True, fast=True)
    schema = builder.build()

    def build() -> None:
        writer = tantivy.Index(schema, path=folder).writer(num_threads=1)
        for place, words in enumerate(terms):
            writer.add_document(tantivy.Document(text=" ".join(words), place=place))
        writer.commit()
        writer.wait_merging_threads()

    def load() -> Callable[[str], list[str]]:
        searcher = tantivy.Index(schema, path=folder).searcher()

        def search(query: str) -> list[str]:
            words = [tantivy.Query.term_query(schema, "text", word) for word in analyze(query)]
            either = tantivy.Query.boolean_query([(tantivy.Occur.Should, word) for word in words])
            hits = searcher.search(either, TOP).hits if words else []
            return [asins[searcher.doc(address)["place"][0]] for _, address in hits]

        return search

    return build, load


def _ours(terms: list[list[str]], asins: list[str], folder: str, options: Any) -> tuple[Callable, Callable]:
    def load() -> Callable[[str], list[str]]:
        catalogue = WebShopEnv(WebShopEnvConfig(data_dir=options.data_dir, cache_dir=folder, limit_goals=1)).catalogue
        names = [catalogue.card(number).asin for number in range(catalogue.product_count)]
        return lambda query: [names[number] for number in catalogue.search(query)]

    return load, load


def main() -> None:
    """Run what the command line names, or all."""
    parser = argparse.ArgumentParser(description="What WebShop costs.")
    parser.add_argument("what", nargs="*", choices=["steps", "workers", "engines", []], help="default: steps workers")
    parser.add_argument("--data-dir", help="a folder with items_shuffle*.json; default: the shipped catalogue")
    parser.add_argument("--rankings", help="what the reference finds, for engines")
    parser.add_argument("--seconds", type=float, default=0.3, help="time spent on each figure")
    options = parser.parse_args()
    for name in options.what or ("steps", "workers"):
        {"steps": bench_steps, "workers": bench_workers, "engines": bench_engines}[name](options)


if __name__ == "__main__":
    main()
