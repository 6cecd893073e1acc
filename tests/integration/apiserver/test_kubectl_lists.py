"""kubectl apply of several objects in one ``List``, for which it reads the old OpenAPI document."""


async def test_a_list_of_objects_is_applied(kubectl):
    maps = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": name}}
        for name in ("one", "two")
    ]
    applied = await kubectl.apply({"apiVersion": "v1", "kind": "List", "items": maps})
    assert (applied.code, applied.out) == (0, "configmap/one created\nconfigmap/two created\n"), applied.err
    assert (await kubectl("get", "cm", "two", "-o", "jsonpath={.data}")).json == {"a": "two"}
