"""An agent in a few lines, for tests: it asks its model for commands, and runs them."""

import json
import os
import subprocess
import sys
import urllib.request

URL = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
KEY = os.environ["OPENAI_API_KEY"]
BASH = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "bash", "parameters": BASH}}
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    asked = {"model": os.environ["INTERCODE_MODEL"], "messages": messages, "tools": [TOOL]}
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(URL, json.dumps(asked).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        message = json.load(answer)["choices"][0]["message"]
    messages.append(message)
    if not message.get("tool_calls"):
        print(message["content"])
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        said = done.stdout + done.stderr
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
