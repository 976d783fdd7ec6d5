"""Chat templates that behave as published ones do, written for these tests: one for each family."""

from __future__ import annotations

CHATML = """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
<|im_start|>system
You are a helpful assistant<|im_end|>
{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""

LLAMA2 = """{% set ns = namespace(system='', turn=0) %}
{% if messages[0]['role'] == 'system' %}
    {% set ns.system = '<<SYS>>\\n' ~ messages[0]['content'].strip() ~ '\\n<</SYS>>\\n\\n' %}
    {% set rest = messages[1:] %}
{% else %}
    {% set rest = messages %}
{% endif %}
{%- for message in rest -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') -}}
    {%- endif -%}
    {%- if message.role == 'user' -%}
        {{- bos_token + '[INST] ' + (ns.system if loop.first else '') + message.content | trim + ' [/INST]' -}}
    {%- elif message.role == 'assistant' -%}
        {{- ' ' + message.content.strip() + ' ' + eos_token -}}
    {%- endif -%}
{%- endfor -%}"""

LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{{- 'Today Date: ' ~ date_string ~ '\\n\\n' ~ system ~ '<|eot_id|>' }}
{%- for message in messages %}
    {%- if message.role == 'ipython' or 'tool_calls' in message %}
        {{- raise_exception('no tools here') }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

MISTRAL = """{%- set loop_messages = messages %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- endif %}
{%- set users = loop_messages | selectattr('role', 'equalto', 'user') | list %}
{%- for message in loop_messages %}
    {%- if (message.role == 'user') != (loop.index0 is even) %}
        {{- raise_exception('After the optional system message, roles must alternate user/assistant') }}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message.role == 'user' %}
        {%- if system is defined and message == users[-1] %}
            {{- '[INST] ' ~ system ~ '\\n\\n' ~ message.content ~ '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message.content + '[/INST]' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {% generation %}{{- ' ' ~ message.content | trim ~ eos_token }}{% endgeneration %}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported') }}
    {%- endif %}
{%- endfor %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}
{%- for message in messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' ~ role }}
{{ message['content'] | trim }}<end_of_turn>
{% endfor %}
{%- if add_generation_prompt -%}
    <start_of_turn>model
{% endif %}"""

QWEN = """{%- macro tool(entry) -%}{{ entry | tojson(indent=2) }}{%- endmacro -%}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for entry in tools %}{{- '\\n' ~ tool(entry) }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}{% set ns.last = loop.revindex0 %}{% break %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if loop.index0 == ns.last and message.content is string %}
        {{- '<|im_start|>user\\n' ~ message.content ~ '<|im_end|>\\n' }}
        {%- continue %}
    {%- endif %}
    {%- set text = message.content.split('</think>')[-1].lstrip('\\n') %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ text ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
{#- what tojson does with letters and marks -#}
{{- '' if messages else messages | tojson }}{{ messages[0].content | tojson | length }}"""

TEMPLATES = {
    "chatml": CHATML, "llama2": LLAMA2, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA, "qwen": QWEN,
}  # fmt: skip
