"""A stand-in for W&B's server: answers the queries of its public API about one run."""

import base64
import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

KEY = "0123456789" * 4  # As long as W&B wants it.


@dataclass
class Version:
    """A version of the artifact `model-<run>`."""

    aliases: list[str]
    files: Mapping[str, bytes]
    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the manifest says of some files other than the truth."""

    def manifest(self) -> dict[str, Any]:
        contents = {
            name: {
                "digest": base64.b64encode(hashlib.md5(data).digest()).decode(),
                "birthArtifactID": "QQ==",
                "size": len(data),
                **self.entries.get(name, {}),
            }
            for name, data in self.files.items()
        }
        config = {"storageLayout": "V2"}
        policy = {"storagePolicy": "wandb-storage-policy-v1", "storagePolicyConfig": config}
        return {"version": 1, **policy, "contents": contents}


@dataclass
class WandbServer:
    """A server of one run, `team/poles/<run>`; use it as a context, which sets `url`.

    Files are found by their digests, else by their names. Once `stalls` is set, it sends half of a
    checkpoint, and then nothing.
    """

    run: str = "abc"
    versions: list[Version] = field(default_factory=list)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the run itself, as rsl_rl uploads checkpoints."""
    stalls: bool = False
    asked: list[str] = field(default_factory=list)
    """The paths and queries that have been answered."""
    url: str = ""

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._end = threading.Event()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._server.shutdown()
        self._server.server_close()

    def environ(self) -> dict[str, str]:
        """Return the variables by which W&B's client finds this server."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}

    def _answer(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data that answers a GraphQL query."""
        if "outputArtifacts" in query:
            return {
                "project": {"run": {"artifacts": self._page([*map(self._node, self.versions)])}}
            }
        if "currentManifest" in query:
            url = f"{self.url}/manifest/{variables['id']}"
            return {"artifact": {"currentManifest": {"file": {"directUrl": url}}}}
        if "RunFiles" in query:
            nodes = [
                {"id": name, "name": name, "url": f"{self.url}/files/{name}", "directUrl": "",
                 "sizeBytes": len(data), "mimetype": "", "updatedAt": None, "md5": ""}
                for name, data in self.files.items()
            ]  # fmt: skip
            files = {"fileCount": len(nodes), "files": self._page(nodes)}
            return {"project": {"internalId": "1", "run": files}}
        if "query Run(" in query:
            path = "/".join(variables[name] for name in ("entity", "project", "name"))
            run = {"id": "x", "name": self.run, "displayName": "x", "projectId": "1", "tags": [],
                   "state": "finished", "config": "{}", "systemMetrics": "{}",
                   "summaryMetrics": "{}", "user": {"name": "me", "username": "me"}}  # fmt: skip
            is_it = path == f"team/poles/{self.run}"
            return {"project": {"run": run if is_it else None}}
        if "serverInfo" in query:
            return {"serverInfo": {"features": []}}
        return {"viewer": {"id": "me", "username": "me", "entity": "team", "flags": "{}"}}

    def _node(self, version: Version) -> dict[str, Any]:
        number = self.versions.index(version)
        entity = {"id": "1", "internalId": "1", "name": "poles", "entity": {"name": "team"}}
        source = {"name": f"model-{self.run}", "project": entity}
        collection = {"__typename": "ArtifactSequence", **source}
        aliases = [
            {"__typename": "ArtifactAlias", "id": "1", "alias": alias,
             "artifactCollection": collection}
            for alias in version.aliases
        ]  # fmt: skip
        nothing = dict.fromkeys(
            ("description", "metadata", "historyStep", "commitHash", "updatedAt")
        )
        return {
            **nothing, "__typename": "Artifact", "id": str(number), "artifactSequence": collection,
            "versionIndex": number, "artifactType": {"name": "model"}, "ttlDurationSeconds": -1,
            "ttlIsInherited": False, "tags": [], "state": "COMMITTED", "size": 1, "digest": "x",
            "fileCount": len(version.files), "createdAt": "2026-01-01T00:00:00Z",
            "aliases": aliases,
        }  # fmt: skip

    @staticmethod
    def _page(nodes: list[dict[str, Any]]) -> dict[str, Any]:
        edges = [{"node": node, "cursor": ""} for node in nodes]
        page = {"hasNextPage": False, "endCursor": None, "__typename": "PageInfo"}
        return {"totalCount": len(nodes), "pageInfo": page, "edges": edges}

    def _file(self, path: str) -> bytes | None:
        """Return what is at a path."""
        if path.startswith("/manifest/"):
            return json.dumps(self.versions[int(path.rpartition("/")[2])].manifest()).encode()
        *_, digest, name = path.split("/")
        places = [self.files, *(version.files for version in self.versions)]
        found = [place[name] for place in places if name in place]
        same = [data for data in found if hashlib.md5(data).hexdigest() == digest]
        return next(iter([*same, *found]), None)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append(asked["query"])
                data = server._answer(asked["query"], asked.get("variables") or {})
                self._send(json.dumps({"data": data}).encode())

            def do_GET(self) -> None:
                server.asked.append(self.path)
                data = server._file(self.path)
                self._send(data or b"", 404 if data is None else 200)

            def _send(self, data: bytes, status: int = 200) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                half = len(data) // 2 if server.stalls and self.path.endswith(".pt") else len(data)
                self.wfile.write(data[:half])
                if half < len(data):
                    server._end.wait()

            def log_message(self, format: str, *_: object) -> None:
                pass

        return Handler
