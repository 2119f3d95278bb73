// Vercel's AI SDK: a text with a tool, by its provider of OpenAI (which asks /v1/responses).
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, tool } from "ai";
import { text as read } from "node:stream/consumers";
import { z } from "zod";

const row = JSON.parse(await read(process.stdin));
const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL });
const { text } = await generateText({
  model: openai("gpt-4.1"),
  prompt: row.question,
  stopWhen: stepCountIs(5),
  tools: {
    add: tool({
      description: "Adds two numbers.",
      inputSchema: z.object({ a: z.number(), b: z.number() }),
      execute: async ({ a, b }) => a + b,
    }),
  },
});
console.log(text.includes(row.answer) ? 1 : 0);
