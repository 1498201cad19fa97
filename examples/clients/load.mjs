// Load the vectors: each case with its reads as bytes and its record as values.
import { readFileSync } from "node:fs";

export function* reads(rules) {
  for (const rule of rules) {
    const data = Buffer.from(rule.base64 ?? rule.text ?? rule, rule.base64 ? "base64" : "utf8");
    if (rule.every) for (let start = 0; start < data.length; start += rule.every) yield data.subarray(start, start + rule.every);
    else if (rule.times)
      for (let n = rule.first; n < rule.first + rule.times; n++) yield Buffer.from(rule.text.replaceAll("{n}", n));
    else yield data;
  }
}

export function whole(value) {
  if (Array.isArray(value)) return value.map(whole);
  if (value === null || typeof value !== "object") return value;
  if (value.repeat && Array.isArray(value.repeat)) return Array(value.times).fill(value.repeat).flat();
  if (value.repeat) return value.repeat.repeat(value.times);
  if (value.join) return value.join.map(whole).reduce((whole, part) => whole.concat(part));
  return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, whole(entry)]));
}

export const load = (path) =>
  JSON.parse(readFileSync(path, "utf8")).cases.map((case_) => ({
    ...case_, reads: reads(case_.reads), record: whole(case_.record),
  }));
