// Comforts only: everything on the page can be read without them.
"use strict";

function button(text, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", act);
  return made;
}

function controls(section, ...parts) {
  const bar = document.createElement("div");
  bar.className = "controls";
  bar.append(...parts);
  section.querySelector(".lead").after(bar);
}

function opener(section) {
  const all = () => section.querySelectorAll("details");
  const set = (open) => () => all().forEach((details) => (details.open = open));
  return [button("open all", set(true)), button("close all", set(false))];
}

function filter(section) {
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "filter by name, file or rule";
  input.setAttribute("aria-label", input.placeholder);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const entry of section.querySelectorAll(".origins > details")) {
      const text = entry.textContent.toLowerCase();
      entry.hidden = !words.every((word) => text.includes(word));
    }
  });
  return input;
}

const [modules, parameters] = ["modules", "parameters"].map((id) => document.getElementById(id));
controls(modules, ...opener(modules));
controls(parameters, filter(parameters), ...opener(parameters));
