"""One chat with a model, by OpenAI's own package.

    openai_chat.py URL whole|stream [NAME]  prints what the model said; NAME is what the client calls itself
"""

import sys

import openai

url, kind, *name = sys.argv[1:]
headers = {"User-Agent": name[0]} if name else {}
client = openai.OpenAI(base_url=url, api_key="nothing", default_headers=headers)
messages = [{"role": "user", "content": "is it well?"}]
if kind == "stream":
    with client.chat.completions.create(model="demo", messages=messages, stream=True) as parts:
        print("".join(part.choices[0].delta.content or "" for part in parts))
else:
    answer = client.chat.completions.create(model="demo", messages=messages)
    print(answer.choices[0].message.content)
